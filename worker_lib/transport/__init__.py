"""How a worker's packets travel. UDP sockets are the first transport; the engine knows only the native Port
interface."""
