import random
random.seed(0)
def solve(x):
    return random.random()
