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

/** Python path with `ratchet_bridge`. */
const pythonFolder = fileURLToPath(new URL('../../../python/', import.meta.url)).replace(/\/$/, '');

interface ChildSees {
  /** Names from the config; a `*` at the end matches any ending. */
  readonly variables?: readonly string[];
  readonly modulePaths?: readonly string[];
  readonly environment?: Readonly<NodeJS.ProcessEnv>;
}

/** All variables that a Python child sees. Throws `ConfigInvalid` for a listed name that it must not see. */
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
    // Tools with an effect refuse to be called where nobody writes the call down (python/ratchet_effects.py).
    RATCHET_PLAYS_ENVIRONMENT: '1',
    // Progress bars would only fill a log.
    HF_DATASETS_DISABLE_PROGRESS_BARS: '1',
    HF_HUB_DISABLE_PROGRESS_BARS: '1',
    TQDM_DISABLE: '1',
  };
}

/** A prefix such as `A*` may match more than intended. */
function withoutKept(seen: Readonly<Record<string, string>>): Record<string, string> {
  return Object.fromEntries(Object.entries(seen).filter(([name]) => !isKeptFromEnvironments(name)));
}
