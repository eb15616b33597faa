import path from 'node:path';
import { fileURLToPath } from 'node:url';
import {
  environmentForAll,
  environmentForVerifiers,
  isKeptFromEnvironments,
  selectEnvironment,
  withoutVariables,
} from '../../../core/child-environment.ts';
import { RatchetError } from '../../../core/errors.ts';

/** Where `python -m ratchet_bridge` finds itself. */
const pythonFolder = fileURLToPath(new URL('../../../python/', import.meta.url)).replace(/\/$/, '');

interface ChildSees {
  /** Names that the config lists, a `*` at the end standing for any. */
  readonly variables?: readonly string[];
  readonly modulePaths?: readonly string[];
  readonly environment?: Readonly<NodeJS.ProcessEnv>;
}

/** All that a Python child sees of our environment. Throws `ConfigInvalid` where a name is listed that it must not see. */
export function childEnvironment({
  variables = [],
  modulePaths = [],
  environment = process.env,
}: ChildSees): Record<string, string> {
  const refused = variables.filter(isKeptFromEnvironments);
  if (refused.length > 0) {
    throw new RatchetError(
      'ConfigInvalid',
      `Environments do not get ${refused.join(', ')}: credentials of the store, of Temporal and of metrics stay with Ratchet. Give a judge or a tool a variable of its own.`,
    );
  }
  const { PYTHONPATH: inherited, ...seen } = selectEnvironment(
    [...environmentForAll, ...environmentForVerifiers, ...variables],
    environment,
  );
  return {
    ...withoutVariables(['NODE_OPTIONS', 'VIRTUAL_ENV'], withoutKept(seen)),
    PYTHONPATH: [pythonFolder, ...modulePaths, ...(inherited ? [inherited] : [])].join(path.delimiter),
    PYTHONUNBUFFERED: '1',
    // Bars of progress fill a log, and nobody sees them move.
    HF_DATASETS_DISABLE_PROGRESS_BARS: '1',
    HF_HUB_DISABLE_PROGRESS_BARS: '1',
    TQDM_DISABLE: '1',
  };
}

/** A prefix such as `A*` may let through more than its name says. */
function withoutKept(seen: Readonly<Record<string, string>>): Record<string, string> {
  return Object.fromEntries(Object.entries(seen).filter(([name]) => !isKeptFromEnvironments(name)));
}
