"""The learner and its state. Called, this package trains: `quatrain.train(...)` is `quatrain.methods.api.train`."""
