import { readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { type Client, WorkflowExecutionAlreadyStartedError } from '@temporalio/client';
import { stringify } from 'smol-toml';
import { parseRunConfig } from '../config/parse-run-config.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { ConfigProblems } from '../config/toml/problems.ts';
import { RatchetError } from '../core/errors.ts';
import { runNamePattern, taskQueues } from '../core/names.ts';
import { present } from '../core/present.ts';
import { asTyped } from '../core/shape.ts';
import { resolveStoreUri } from '../store/index.ts';
import { ownerInFolder, requireRole } from '../workers/temporal/who-may.ts';
import { orchestratorsOf } from '../workers/temporal/why-stuck.ts';
import { requireStarting } from './arguments.ts';
import type * as Api from './index.mjs';
import { ConnectedRun, connectTo, orClosed } from './open-run.ts';

/** Starts a run, or continues it. */
export async function startRun(
  file: string | Readonly<Record<string, unknown>>,
  options: Api.StartOptions,
): Promise<Api.Run> {
  await requireStarting(file, options);
  const { folder = process.cwd(), rewind } = options;
  const overrides = present(options.overrides ?? {});
  const isFile = typeof file === 'string';
  const config = isFile ? file : `${nameOf(file, options)}.toml`;
  const text = isFile ? await readText(path.resolve(folder, file)) : asToml(file);
  const { name: run, store } = checked(text, config, { ...options, overrides });
  const owner = ownerInFolder({ name: run, store: resolveStoreUri(store.uri, folder) });
  await requireRole(`starting ${run}`, { of: 'run', run, owner, isOrBegins: true }, { projectFolder: folder });
  if (!isFile) await writeOnce(path.resolve(folder, config), text);
  const input = { config, run, overrides, sent: { texts: { [config]: text }, beside: {} }, ...present({ rewind }) };
  const connected = await connectTo(options);
  return orClosed(connected, async ({ client }) => {
    await requireOrchestrator(client);
    return new ConnectedRun(run, await start(client, run, input), connected, options.folder);
  });
}

function nameOf(settings: Readonly<Record<string, unknown>>, { name = settings['name'] }: { name?: unknown }): string {
  if (typeof name === 'string' && runNamePattern.test(name)) return name;
  throw new RatchetError(
    'ConfigInvalid',
    `name: expected the name of the run (a-z, 0-9 and . _ -, beginning with a letter or digit, at most 64), got ${JSON.stringify(name ?? null)}.`,
  );
}

/** Problems of the settings are told here: an orchestrator does not tell what is in a file. */
function checked(text: string, file: string, { name, overrides = {} }: Api.StartOptions): RunSpec {
  const typed = Object.fromEntries(Object.entries(overrides).map(([key, value]) => [key, asTyped(value)]));
  const parsed = parseRunConfig(text, { file, overrides: typed, ...present({ runName: name }) });
  if (!parsed.ok) throw new ConfigProblems(parsed.problems, parsed.readAs);
  return parsed.spec;
}

/** Workers read the files of their folder, and no text from Temporal, whose server may not know who asks. */
async function writeOnce(file: string, text: string): Promise<void> {
  try {
    await writeFile(file, text, { flag: 'wx' });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    if ((await readText(file)) === text) return;
    throw new RatchetError(
      'ConfigInvalid',
      `${file} has other settings, and is not overwritten. Give startRun its path, or these settings another name.`,
      { cause: error },
    );
  }
}

async function readText(file: string): Promise<string> {
  try {
    return await readFile(file, 'utf8');
  } catch (cause) {
    const { code } = cause as NodeJS.ErrnoException;
    const why = code === 'ENOENT' ? 'there is no such file' : `it cannot be read (${code})`;
    throw new RatchetError(
      'ConfigInvalid',
      `${file}: expected a run file, but ${why}. Give the path of one on this machine, or its settings as an object.`,
      { cause },
    );
  }
}

function asToml(settings: Readonly<Record<string, unknown>>): string {
  try {
    return stringify(settings);
  } catch (cause) {
    throw new RatchetError(
      'ConfigInvalid',
      `The settings: expected what a TOML file can say (texts, numbers, true or false, lists, tables): ${cause instanceof Error ? cause.message : String(cause)}`,
      { cause },
    );
  }
}

/** A worker that is gone is listed for minutes; one that is there asks once a minute. */
const polledWithinMs = 90_000;

async function requireOrchestrator(client: Client): Promise<void> {
  if ((await orchestratorsOf(client.workflow, Date.now() - polledWithinMs)).length > 0) return;
  throw new RatchetError(
    'ServerUnavailable',
    'Nothing was started: no orchestrator polls this Temporal server for work. Start the workers with `npx ratchet-rl dev` in the folder of the run file, or `npx ratchet-rl worker --role orchestrator` and those of the other roles.',
  );
}

async function start(client: Client, run: string, input: object) {
  try {
    return await client.workflow.start('trainRun', {
      workflowId: run,
      taskQueue: taskQueues.orchestrator,
      args: [input],
      workflowIdReusePolicy: 'ALLOW_DUPLICATE',
      workflowIdConflictPolicy: 'FAIL',
      // A killed orchestrator's unfinished workflow task is waited for no longer than this.
      workflowTaskTimeout: '5s',
    });
  } catch (error) {
    if (!(error instanceof WorkflowExecutionAlreadyStartedError)) throw error;
    throw new RatchetError(
      'ConfigInvalid',
      `The run ${run} is running. attach(${JSON.stringify(run)}) steers it; another name starts another run.`,
      { cause: error },
    );
  }
}
