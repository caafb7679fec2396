"""Judge a model's folder: is it complete, does it run no code and load no pickle unasked, and do its settings fit the
flags."""
