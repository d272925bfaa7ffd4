"""The foundation of everything, which knows nothing about messaging: ids, errors, sentences, phone numbers,
money, histograms, retry schedules."""
