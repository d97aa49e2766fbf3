#!/usr/bin/env python
# coding: utf-8

# # Fitting a line
# As `jupyter nbconvert --to script` writes a notebook: no functions around it, no main guard.

# In[1]:


import hashlib

import torch
import torch.utils.data as data


# In[2]:


class Line(data.Dataset):
    def __len__(self):
        return 50

    def __getitem__(self, i):
        x = torch.tensor([i / 50.0])
        return {"x": x, "y": 3 * x + 1}


torch.manual_seed(0)
loader = data.DataLoader(Line(), batch_size=8, shuffle=True, num_workers=2)
next(iter(loader))["x"].shape


# In[3]:


model = torch.nn.Linear(1, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
total = hashlib.sha256()
for epoch in range(3):
    for batch in loader:
        total.update(batch["x"].numpy().tobytes())
        loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())


# In[4]:


print(total.hexdigest())
