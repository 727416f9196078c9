import os
from code_inside.frames import MARK
n=900000
os.write(1,MARK+n.to_bytes(4,'big'))
left=b'['*n
while left: left=left[os.write(1,left):]
os._exit(0)
