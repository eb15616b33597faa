/** A worker as `workers/main.ts` starts it, in which every environment is one that can break. */
import { createEnvironments, environments } from '../../backends/environments/index.ts';
import { loadEnvironment } from '../../backends/environments/load.ts';
import { breakable } from './breakable-environment.ts';

Object.assign(
  environments,
  createEnvironments(async ({ id, args }) => breakable(await loadEnvironment(id, args))),
);
await import('../../workers/main.ts');
