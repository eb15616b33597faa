import { createHash } from 'node:crypto';
import path from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { RatchetError } from '../../../core/errors.ts';
import { variablesOfEnvironments } from '../../../core/child-environment.ts';
import { pythonChildrenDefault } from '../../../core/limits.ts';
import type { EnvironmentEntry, PythonEnvironment } from '../../../core/settings/environments.ts';
import { trustedFile } from '../../../host/trusted-files.ts';
import { requireSamePackage } from '../packages/installed.ts';
import type { InstalledState } from '../packages/installed-state.ts';
import { processesOpen } from '../../../host/processes-open.ts';
import type { Environment } from '../types.ts';
import { type Bridge, openBridge } from './bridge.ts';
import { bridgeFolder } from './bridge-folder.ts';
import { groupScores, type LoadedVerifiers, verifiersEnvironment } from './environment.ts';
import { loadRequest } from './load-request.ts';
import { Suspects } from './suspects.ts';
import { inputsOf } from './inputs.ts';

interface PythonEntry extends Pick<EnvironmentEntry, 'id' | 'args' | 'limits' | 'agent' | 'stateColumns' | 'extra'> {
  readonly python: PythonEnvironment;
  /** Variables that the config lists for it, with their values. */
  readonly given: Readonly<Record<string, string>>;
  /** A process remembers what was installed when it began; missing = whatever was. */
  readonly state?: InstalledState | undefined;
}

/**
 * Children of one virtual environment with equal variables, and the imported packages, by the digest of their files.
 */
interface OpenedBridge {
  /** Digest of everything it imports, at that time. */
  readonly shared: string;
  readonly given: Readonly<Record<string, string>>;
  readonly bridge: Promise<Bridge>;
  readonly modules: Map<string, string>;
  /** Keyed by module and arguments. */
  readonly loaded: Map<string, Promise<LoadedVerifiers>>;
}

/** Bridges of this process by virtual environment, newest last: Python does not reload a module. */
const bridges = new Map<string, OpenedBridge[]>();

/**
 * A verifiers environment for a resolved config id, in a Python child of this process. Opening it again returns the
 * same one, in a new child if the previous one is gone.
 */
export async function openVerifiers(entry: PythonEntry): Promise<Environment> {
  const { id, args, python, given, limits, agent, stateColumns = [], extra = {}, state } = entry;
  const opened = bridgeOf(python, { given, state });
  const key = `${python.module}-${createHash('sha256')
    .update(JSON.stringify([args, agent, limits?.maxTurns, extra, stateColumns]))
    .digest('hex')
    .slice(0, 12)}`;
  const known = opened.loaded.get(key);
  const loading = known ?? load(opened, key, entry);
  opened.loaded.set(key, loading);
  loading.catch(() => {
    opened.loaded.delete(key); // the next request tries again
    if (opened.loaded.size === 0) void forget(python.folder, opened);
  });
  return verifiersEnvironment(id, await loading);
}

/** Ends all Python children of this process, and their resources. */
async function closeVerifiers(): Promise<void> {
  const all = [...bridges].flatMap(([folder, known]) => known.map((opened) => forget(folder, opened)));
  await Promise.all(all);
}

/** Ends the children of one bridge; a repaired package is loaded into another. */
async function forget(folder: string, gone: OpenedBridge): Promise<void> {
  const left = (bridges.get(folder) ?? []).filter((opened) => opened !== gone);
  if (left.length > 0) bridges.set(folder, left);
  else bridges.delete(folder);
  for (const loading of gone.loaded.values()) await loading.then(closeInputs, () => undefined);
  await gone.bridge.then(
    (bridge) => bridge.close(),
    () => undefined,
  );
}

async function load({ bridge: opening }: OpenedBridge, env: string, entry: PythonEntry): Promise<LoadedVerifiers> {
  const { id, python, stateColumns: columns = [] } = entry;
  requireSamePackage(python);
  const bridge = await opening;
  const loaded = await bridge.load(loadRequest(env, entry));
  const notes = new Set<string>();
  const read = (split: 'train' | 'eval') => inputsOf(bridge, { id, env, split, note: (said) => notes.add(said) });
  const [dataset, evalDataset] = [await read('train'), await read('eval')];
  const groups = groupScores(bridge, env, columns);
  return { bridge, loaded, dataset, evalDataset, notes: [...notes], columns, groups, suspects: new Suspects() };
}

function closeInputs({ dataset, evalDataset }: LoadedVerifiers): void {
  dataset.close();
  evalDataset.close();
}

function bridgeOf(
  { folder, module, sha256 }: PythonEnvironment,
  { given, state: { shared, own } = { shared: '', own: '' } }: Pick<PythonEntry, 'given' | 'state'>,
): OpenedBridge {
  const files = sha256 ?? own;
  const known = bridges.get(folder) ?? [];
  bridges.set(folder, known);
  const fitting = known.findLast(
    (one) =>
      one.shared === shared &&
      (!one.modules.has(module) || one.modules.get(module) === files) &&
      isDeepStrictEqual(one.given, given),
  );
  const opened = fitting ?? {
    bridge: startBridge(folder, given),
    modules: new Map(),
    loaded: new Map(),
    given,
    shared,
  };
  if (!fitting) {
    for (const older of known) if (older.shared !== shared || older.modules.has(module)) void restWhenIdle(older);
    known.push(opened);
  }
  opened.modules.set(module, files);
  return opened;
}

function startBridge(folder: string, given: PythonEntry['given']): Promise<Bridge> {
  processesOpen.add(closeVerifiers);
  const python = path.join(trustedFile(folder, 'The Python environment'), 'bin', 'python');
  const opening = openBridge({
    python,
    children: childrenOf(process.env['RATCHET_PYTHON_CHILDREN']),
    folder: bridgeFolder(),
    variables: [...variablesOfEnvironments(process.env), ...Object.keys(given)],
    environment: { ...process.env, ...given },
    log: (line) => process.stderr.write(`${line}\n`),
  });
  opening.catch(() => undefined); // loading into it reports the error
  return opening;
}

/** Idle time after which processes with outdated packages end. */
const idleMs = 5 * 60_000;

/** Rollouts that still use them continue; the next request gets new ones. */
async function restWhenIdle({ bridge: opening }: OpenedBridge): Promise<void> {
  const bridge = await opening.catch(() => null);
  if (bridge === null) return;
  let idleSince = Date.now();
  const timer = setInterval(() => {
    if (bridge.isBusy) idleSince = Date.now();
    else if (Date.now() - idleSince >= idleMs) {
      clearInterval(timer);
      void bridge.rest();
    }
  }, idleMs / 10).unref();
}

function childrenOf(written: string | undefined): number {
  if (written === undefined || written === '') return pythonChildrenDefault;
  const count = Number(written);
  if (Number.isInteger(count) && count > 0 && count <= 256) return count;
  throw new RatchetError(
    'ConfigInvalid',
    `RATCHET_PYTHON_CHILDREN: expected a whole number from 1 to 256, received ${JSON.stringify(written)}.`,
  );
}
