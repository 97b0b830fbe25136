"""The engine: knows Redis, streams and limits; knows no model and no stage."""
