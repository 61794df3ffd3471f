def hint(n): return None
