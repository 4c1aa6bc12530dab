"""Values of torch's objects: tensors, modules, their functions and modes, and what the graph is given for them."""
