def solve(x):
    return str(x*x+1)
