"""What every part stands on and what knows no part: ids, errors, phone numbers, retry schedules."""
