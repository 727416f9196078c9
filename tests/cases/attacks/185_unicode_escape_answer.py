def solve(x):
    return '\ufeff\u202e'+str(x*x+1)
