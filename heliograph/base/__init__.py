"""The foundation of everything, with no knowledge of messaging: ids, errors, sentences, phone numbers, money,
histograms, retry schedules."""
