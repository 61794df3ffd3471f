def apply_ufunc(*a): raise TypeError
def apply_function(*a): raise TypeError
