def solve(x):
    return {k*(2**61-1): 0 for k in range(2000)}
