/** Entry of a worker's process: reads its secrets before any module that uses `process.env`. */
import './take-secrets.ts';

await import('./roles/worker-process.ts');
