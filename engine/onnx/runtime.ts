import './no-telemetry.ts'; // before the library, and the library from nowhere else
export { env, InferenceSession, Tensor } from 'onnxruntime-node';
