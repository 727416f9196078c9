import sys
sys.setrecursionlimit(10**7)
x=[]
for _ in range(10**6): x=[x]
str(x)
