/**
 * onnxruntime's Linux library reports its use to its makers over the network, under an identifier it keeps in the user's
 * cache, unless this is set before it is loaded. Nothing of a run leaves the machine, so it is set.
 */
process.env['ORT_DISABLE_TELEMETRY'] = '1';
