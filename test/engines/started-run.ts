import { existsSync, readFileSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import path from 'node:path';
import type { TestContext } from 'node:test';
import { Client, Connection, type WorkflowHandleWithFirstExecutionRunId } from '@temporalio/client';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { taskQueues } from '../../core/names.ts';
import { choosePort } from '../../workers/stack/ports.ts';
import { localRoles } from '../../workers/stack/roles.ts';
import { startStack } from '../../workers/stack/supervisor.ts';
import { vllmRole } from '../../workers/stack/vllm-role.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import { vllmVariables } from './vllm-cpu.ts';

export interface StartedRun {
  readonly handle: WorkflowHandleWithFirstExecutionRunId<typeof trainRun>;
  /** Complete rows of `metrics.jsonl`. */
  readonly rows: () => Record<string, number>[];
  readonly killVllm: () => void;
  readonly pids: () => Readonly<Record<string, number | null | undefined>>;
  /** The run again, or another of the same file, with settings of the command line. */
  readonly startAgain: (
    run: string,
    overrides: Readonly<Record<string, string>>,
  ) => Promise<WorkflowHandleWithFirstExecutionRunId<typeof trainRun>>;
}

/** Starts a run of `config` with a stack of its own, whose supervisor starts the vLLM that it names. Ends with the test. */
export async function startRun(
  t: TestContext,
  { folder, config }: { readonly folder: string; readonly config: string },
): Promise<StartedRun> {
  await writeFile(path.join(folder, 'run.toml'), config);
  await mkdir(path.join(folder, 'outputs'));
  const vllm = await vllmRole((await loadRunConfig('run.toml', { projectFolder: folder })).spec, folder);
  const policyPort = await choosePort(0);
  const stack = await startStack({
    projectFolder: folder,
    roles: localRoles({ weightRoots: [path.join(folder, 'outputs')], policyPort, followsMetrics: false, vllm }),
    log: (line) => void process.stderr.write(`${line}\n`),
    environment: { ...process.env, ...vllmVariables },
  });
  t.after(() => stack.stop());
  const client = new Client({ connection: await Connection.connect({ address: stack.temporalAddress }) });
  const startAgain: StartedRun['startAgain'] = (run, overrides) =>
    client.workflow.start<typeof trainRun>('trainRun', {
      workflowId: run,
      taskQueue: taskQueues.orchestrator,
      args: [{ config: 'run.toml', run, overrides }],
    });
  const handle = await startAgain('run', {});
  return {
    handle,
    rows() {
      const file = path.join(folder, 'outputs/run/metrics.jsonl');
      if (!existsSync(file)) return [];
      const lines = readFileSync(file, 'utf8').split('\n').slice(0, -1);
      return lines.map((line) => JSON.parse(line) as Record<string, number>);
    },
    startAgain,
    pids: () => stack.pids(),
    killVllm: () => void process.kill(-stack.pids()['vllm server']!, 'SIGKILL'),
  };
}
