#!/usr/bin/env node
/** The command: runs cli/main.ts from source. */
import module from 'node:module';

/** Nothing of a user's is loaded by these, and they are to answer at once. */
const light = ['status', 'runs', 'events', 'pause', 'resume', 'stop', 'set'];

/** Newer Node reads TypeScript by itself, in less time than tsx takes to load, and without a warning from these versions on. */
function readsTypeScript() {
  const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
  return (
    'typescript' in process.features &&
    Boolean(process.features.typescript) &&
    (major > 24 || (major === 24 && minor >= 3) || (major === 22 && minor >= 18))
  );
}

// Node 20 has no such thing.
if ('enableCompileCache' in module && typeof module.enableCompileCache === 'function') module.enableCompileCache();
if (!(readsTypeScript() && light.includes(process.argv[2] ?? ''))) (await import('tsx/esm/api')).register();
await import('./main.ts');
