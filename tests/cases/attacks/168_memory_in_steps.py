x=[]
while True: x.append('y'*(1<<20))
