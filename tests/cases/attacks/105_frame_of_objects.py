import os
from code_inside.frames import MARK
data=b'{"a":'*400+b'1'+b'}'*400
os.write(1,MARK+len(data).to_bytes(4,'big')+data)
os._exit(0)
