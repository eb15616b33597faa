#!/usr/bin/env node
/** The command. */
import module from 'node:module';
import { builtProgram } from '../workers/built.mjs';

// Node 20 has no such thing.
if ('enableCompileCache' in module && typeof module.enableCompileCache === 'function') module.enableCompileCache();
// What is written here is nobody's outside of the group: folders of runs, results, logs. What the umask denies the group stays denied.
process.umask(process.umask() | 0o007);
const built = await builtProgram();
if (built === undefined) (await import('tsx/esm/api')).register();
await import(built ?? './main.ts');
