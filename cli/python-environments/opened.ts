import { readFile, rm } from 'node:fs/promises';
import { type Bridge, openBridge } from '../../backends/environments/verifiers/bridge.ts';
import { bridgeFolder } from '../../backends/environments/verifiers/bridge-folder.ts';
import { whatIsOtherwise } from '../../backends/environments/verifiers/inputs.ts';
import { loadRequest } from '../../backends/environments/verifiers/load-request.ts';
import type { LoadedEnvironment } from '../../backends/environments/verifiers/protocol.ts';
import { pythonIn } from '../../backends/python/interpreter.ts';
import type { JsonValue, PythonEnvironmentSpec } from '../../config/run-spec.ts';
import { toldWhenSlow } from '../output/told-when-slow.ts';

/** A Python environment that a command looks at. */
export interface AskedEnvironment {
  readonly id: string;
  readonly python: PythonEnvironmentSpec;
  readonly args: Readonly<Record<string, JsonValue>>;
  /** Variables that it may see besides the default ones. */
  readonly passEnvironment: readonly string[];
}

export interface OpenedEnvironment {
  readonly bridge: Bridge;
  readonly loaded: LoadedEnvironment;
  /** The handle in calls of the bridge. */
  readonly env: string;
  /** Rows of its examples, each a line of JSON. */
  readonly rows: (split: 'train' | 'eval') => Promise<readonly string[]>;
  /** Differences between the rows read and the environment's, for people. */
  readonly notes: () => readonly string[];
}

/** Loads an environment into a Python process that ends with the work. */
export async function withPythonEnvironment<T>(
  { id, python, args, passEnvironment }: AskedEnvironment,
  work: (opened: OpenedEnvironment) => Promise<T>,
): Promise<T> {
  const folder = bridgeFolder();
  const bridge = await openBridge({ python: pythonIn(python.folder), folder, variables: passEnvironment });
  try {
    const loaded = await toldWhenSlow(id, () => bridge.load(loadRequest(id, { python, args })));
    const notes = new Set<string>();
    const rows = async (split: 'train' | 'eval') => {
      const written = await bridge.inputs({ env: id, split });
      for (const said of whatIsOtherwise(id, written)) notes.add(said);
      return (await readFile(written.file, 'utf8')).split('\n').filter((line) => line !== '');
    };
    return await work({ bridge, loaded, env: id, rows, notes: () => [...notes] });
  } finally {
    await bridge.close();
    await rm(folder, { recursive: true, force: true });
  }
}
