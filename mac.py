import sys
sys.argv=['x','none']
exec(open('/tmp/mine/lu.py').read().split("backend=sys.argv[1]")[0])
sys.path.append('/tmp/libs-tv')
def run(which):
    seedall(0); m,mk=P['mac']()
    out=[]
    fn=m if which=='eager' else dynacompile.compile(m,backend='eager')
    opt=torch.optim.SGD(m.parameters(),lr=1e-2)
    for t in range(3):
        torch.manual_seed(t); a,k=mk((2,2,3)[t])
        l=fn(*a,**k); opt.zero_grad(); l.backward()
        out.append(('loss',t,l.detach().clone())); out+= [(n,t,p.grad.clone()) for n,p in m.named_parameters() if p.grad is not None]; opt.step()
    return out
e=run('eager'); e2=run('eager'); g=run('ours')
print(len(e),len(g))
for (n,t,x),(n2,_,y),(_,_,z) in zip(e,e2,g):
    if not torch.equal(x,y): print('eager differs from itself',n,t,(x-y).abs().max())
    if n!=n2 or not torch.equal(x,z): print(n,t,(x-z).abs().max().item(), x.abs().max().item())
