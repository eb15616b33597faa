#!/usr/bin/env node
/** The command: runs cli/main.ts from source. */
import { register } from 'tsx/esm/api';

register();
await import('./main.ts');
