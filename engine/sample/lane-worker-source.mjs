/** Runs lane-worker.ts from source: the loader of the thread that starts a worker does not reach into it. */
import { register } from 'tsx/esm/api';

register();
await import('./lane-worker.ts');
