import { setTimeout as delay } from 'node:timers/promises';
import type { Client, WorkflowHandle } from '@temporalio/client';
import { Command } from '@commander-js/extra-typings';
import { RatchetError } from '../../../core/errors.ts';
import { sweepWorkflowId, taskQueues } from '../../../core/names.ts';
import { rungSteps, stepsOf } from '../../../core/sweep/halving.ts';
import type { SweepInput, SweepResult, SweepStatus } from '../../../core/sweep/sweep.ts';
import { describeRow } from '../../../core/sweep/table.ts';
import type { sweep } from '../../../workflows/sweep.ts';
import { openReporter, type Reporter } from '../../output/reporter.ts';
import { print, printJson } from '../../output/print.ts';
import { needsOf, uiLine, withProcesses } from '../../start/processes.ts';
import { planSweep } from '../../sweep/plan-sweep.ts';
import { sweepLines } from '../../sweep/sweep-table.ts';
import { watchWorkflow } from '../../temporal/watch-workflow.ts';
import { starterOf } from '../../../workers/temporal/history-of-changes.ts';
import { requireRole } from '../../../workers/temporal/who-may.ts';
import { withTemporal } from '../../temporal/with-temporal.ts';

const help = `
FILE ends in .toml. What has its name alone is a sweep that was begun: --status, --pause, --resume, --cancel.
The same command continues a sweep that was interrupted: no step is trained twice.
`;

export const sweepCommand = new Command('sweep')
  .description('train a table of settings, and drop what is behind at each rung')
  .argument('<file>', 'file of a sweep (TOML), or the name of one that was begun')
  .option('--dry-run', 'list the runs and rungs; start nothing')
  .option('--yes', 'as in ratchet train: get what is not here, and train where a step takes hours')
  .option('--status', 'how the sweep NAME stands')
  .option('--pause [reason]', 'begin no further run of the sweep NAME; those that train go on to their rung')
  .option('--resume', 'continue the sweep NAME after a pause')
  .option('--cancel', 'end the sweep NAME and its runs; what is committed stays')
  .option('--json', 'objects in place of text')
  .addHelpText('after', help)
  .action(async (what, options) => {
    process.exitCode = what.endsWith('.toml') ? await start(what, options) : await steer(what, options);
  });

interface Options {
  readonly dryRun?: boolean;
  readonly yes?: boolean;
  readonly status?: boolean;
  readonly pause?: string | true;
  readonly resume?: boolean;
  readonly cancel?: boolean;
  readonly json?: boolean;
}

/** One line of `ratchet sweep FILE --json` between its first and its last. */
type SweepLine =
  | ({ readonly type: 'progress'; readonly time: string } & SweepStatus)
  | ({ readonly type: 'result'; readonly time: string } & SweepResult);

async function start(file: string, { dryRun, yes = false, json = false }: Options): Promise<number> {
  const reporter = openReporter<SweepLine>({ json });
  const { input, spec } = await planSweep(file, { projectFolder: process.cwd(), yes, say: reporter.say });
  if (dryRun) {
    if (json) printJson({ ...input, sent: undefined, rungSteps: rungSteps(input.maxSteps, input.halving) }, 2);
    else print(planLines(input).join('\n'));
    return 0;
  }
  const quiet = { say: reporter.say, part: () => '' };
  const exitCode = await withProcesses(needsOf(spec), quiet, async ({ client, stack, uiUrl, interrupted, gone }) => {
    const handle = await client.workflow.start<typeof sweep>('sweep', {
      workflowId: sweepWorkflowId(input.name),
      taskQueue: taskQueues.orchestrator,
      args: [input],
      workflowIdConflictPolicy: 'USE_EXISTING',
      workflowIdReusePolicy: 'ALLOW_DUPLICATE',
      workflowTaskTimeout: '5s',
      staticSummary: `${input.runs.length} runs of ${input.config} · ${input.metric.name}`,
    });
    if (uiUrl) reporter.say(uiLine(uiUrl, handle));
    const options = { reporter, hasOwnStack: stack !== null, interrupted: interrupted.signal, gone };
    return watchWorkflow(handle, options, {
      noun: 'sweep',
      toEnd: `npx ratchet-rl sweep ${input.name} --cancel`,
      follow: (signal) => follow(handle, reporter, signal),
      tellResult: async (result) => {
        reporter.emit({ type: 'result', time: new Date().toISOString(), ...result });
        reporter.print(sweepLines(result).join('\n'));
        if (result.best !== null)
          reporter.print(`best: row ${result.best + 1}: ${describeRow(result.rows[result.best])}`);
        return 0;
      },
    });
  });
  return exitCode ?? 130;
}

function planLines({ name, config, rows, runs, metric, maxSteps, halving }: SweepInput): string[] {
  const steps = rungSteps(maxSteps, halving);
  const seeds = runs.length / rows.length;
  const { halved, full } = stepsOf(rows.length, seeds, { steps, eta: halving?.eta ?? null });
  return [
    `${name}: ${runs.length} runs of ${config}, ${rows.length} rows of settings × ${seeds} ${seeds === 1 ? 'seed' : 'seeds'}`,
    `rungs at step ${steps.join(', ')}, by ${metric.name} (${metric.goal}): ${halved} steps of ${full}`,
    ...runs.map((run) => `  ${run.name}  ${describeRow(rows[run.row]!)}`),
  ];
}

const pollMs = 1_000;
const queryTimeoutMs = 4_000;

async function follow(
  handle: WorkflowHandle<typeof sweep>,
  reporter: Reporter<SweepLine>,
  signal: AbortSignal,
): Promise<void> {
  let told = '';
  while (!signal.aborted) {
    const status = await handle.client
      .withDeadline(Date.now() + queryTimeoutMs, () => handle.query<SweepStatus>('status'))
      .catch(() => null); // no worker answers now: it is asked again
    const key = JSON.stringify(status);
    if (status !== null && key !== told) {
      for (const line of changeLines(told === '' ? null : (JSON.parse(told) as SweepStatus), status))
        reporter.say(line);
      reporter.emit({ type: 'progress', time: new Date().toISOString(), ...status });
      told = key;
    }
    await delay(pollMs, undefined, { signal }).catch(() => undefined); // ended: the loop ends
  }
}

/** Lines for runs whose state has changed since the look before, and for rungs. */
function changeLines(before: SweepStatus | null, { runs, rows, metric, decided }: SweepStatus): string[] {
  const was = new Map(before?.runs.map((run) => [run.name, run]));
  const changed = runs.flatMap((run) => {
    if (run.state === 'waiting' || was.get(run.name)?.state === run.state) return [];
    const at =
      run.state === 'at its rung' ? ` at step ${run.step}: ${metric.name} ${run.value?.toPrecision(4) ?? '–'}` : '';
    return [`${run.name}  ${run.state}${at}  ${describeRow(rows[run.row]!)}`];
  });
  const rungs = decided.slice(before?.decided.length ?? 0).map(({ step, ranking, survivors }) => {
    return `rung at step ${step}: ${survivors.length} of ${ranking.length} rows go on`;
  });
  return [...changed, ...rungs];
}

async function steer(name: string, { pause, resume, cancel, json }: Options): Promise<number> {
  return withTemporal(async (client) => {
    const handle = await find(client, name);
    const isSteered = pause !== undefined || resume === true || cancel === true;
    if (isSteered)
      await requireRole(`steering the sweep ${name}`, { of: 'run', run: name, owner: () => starterOf(handle) });
    if (pause !== undefined)
      print(await handle.executeUpdate<string, [string | null]>('pause', { args: [pause === true ? null : pause] }));
    else if (resume) print(await handle.executeUpdate<string, []>('resume'));
    else if (cancel) {
      await handle.cancel();
      print(
        `${name}: asked to end, and its runs with it; what is committed stays. The same ratchet sweep FILE continues it`,
      );
    } else {
      const status = await handle.query<SweepStatus>('status');
      if (json) printJson(status);
      else print(sweepLines(status).join('\n'));
    }
    return 0;
  });
}

async function find(client: Client, name: string): Promise<WorkflowHandle> {
  const handle = client.workflow.getHandle(sweepWorkflowId(name));
  try {
    await handle.describe();
    return handle;
  } catch (cause) {
    throw new RatchetError(
      'RunNotFound',
      `There is no sweep ${name} on this Temporal server. npx ratchet-rl sweep FILE.toml begins one.`,
      { cause },
    );
  }
}
