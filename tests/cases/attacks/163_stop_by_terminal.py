import os
try: os.tcsetpgrp(0,1)
except OSError: pass
def solve(x):
    return x*x+1
