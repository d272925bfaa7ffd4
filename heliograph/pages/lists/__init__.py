"""Lists: chosen columns, time ranges, and pagination."""
