import sys
import torch, gatewise
from gatewise.engines.cuda import planner
T,N,H,fam=int(sys.argv[1]),int(sys.argv[2]),int(sys.argv[3]),(sys.argv[4] if sys.argv[4]!="auto" else None)
d=gatewise.LSTMDescriptor(training=True)
g=lambda *s: torch.randn(*s,device='cuda',dtype=torch.bfloat16)
x,R,W,b=g(T,N,H),g(4*H,H)/H**.5,g(4*H,H)/H**.5,g(4*H)
with planner.wish(fam):
    for _ in range(3):
        s,c,z=gatewise.lstm(x,R,W,b,descriptor=d)
        gatewise.lstm_gradients(x,R,s,z,c,input_weight=W,bias=b,descriptor=d)
torch.cuda.synchronize()
