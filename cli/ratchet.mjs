#!/usr/bin/env node
import { builtProgram, keepCompiled } from '../workers/built.mjs';
import { endWhenTold } from '../workers/first-process.mjs';

// New files (runs, results, logs) are closed to users outside the group. The group keeps what the umask allows it.
process.umask(process.umask() | 0o007);
endWhenTold();
keepCompiled();
const built = await builtProgram();
if (built === undefined) (await import('tsx/esm/api')).register();
await import(built ?? './main.ts');
