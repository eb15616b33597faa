/** Entry of a worker's process: its secrets are there before anything is loaded that reads `process.env` meanwhile. */
import './take-secrets.ts';

await import('./worker-process.ts');
