"""Pure tensor mathematics: no configuration, no model, no rank; tensors (or float64 arrays) in and out."""
