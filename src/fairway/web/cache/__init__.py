"""Share one query between pages that are open at the same time."""
