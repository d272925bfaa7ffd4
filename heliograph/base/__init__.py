"""The foundation of everything, which knows nothing about messaging: ids, errors, phone numbers, retry schedules."""
