import { Command } from '@commander-js/extra-typings';
import { RatchetError } from '../../../core/errors.ts';
import { sweepWorkflowId, taskQueues } from '../../../core/names.ts';
import type { SweepInput, SweepResult, SweepStatus } from '../../../core/sweep/sweep.ts';
import { describeRow } from '../../../core/sweep/table.ts';
import type { sweep } from '../../../workflows/sweep.ts';
import { openReporter } from '../../output/reporter.ts';
import { print, printJson } from '../../output/print.ts';
import { needsOf, uiLine, withProcesses } from '../../start/processes.ts';
import { followSweep } from '../../sweep/follow-sweep.ts';
import { planJson, planLines } from '../../sweep/plan-lines.ts';
import { planSweep } from '../../sweep/plan-sweep.ts';
import { refuseOtherSweep } from '../../sweep/same-sweep.ts';
import { steerSweep, type SweepSteering } from '../../sweep/steer-sweep.ts';
import { sweepLines } from '../../sweep/sweep-table.ts';
import { watchWorkflow } from '../../temporal/watch-workflow.ts';
import { requirePairs } from '../../typed/option-pairs.ts';

const help = `
The same command continues a sweep that was interrupted: no step is trained twice.
--status, --pause, --resume and --cancel take the file, or the name of the sweep.
`;

export const sweepCommand = new Command('sweep')
  .description('train a table of settings, and drop what is behind at each rung')
  .argument('<file>', 'file of a sweep (TOML); with one of the last options, or alone to see how it stands, its name')
  .option('--dry-run', 'list the runs and rungs; start nothing')
  .option('--yes', 'as in ratchet train: get what is not here, and train where a step takes hours')
  .option('--status', 'how the sweep stands')
  .option('--pause [reason]', 'begin no further run; those that train go on to their rung')
  .option('--resume', 'continue after a pause')
  .option('--cancel', 'end the sweep and its runs; what is committed stays')
  .option('--no-page', 'without the page that compares its runs, which is served on this machine alone')
  .option('--json', 'objects in place of text')
  .addHelpText('after', help)
  .action(async (what, options) => {
    const isFile = what.endsWith('.toml');
    const isSteered = [options.status, options.pause, options.resume, options.cancel].some((one) => one !== undefined);
    if (options.dryRun && !isFile) throw needsFile(what);
    process.exitCode = isFile && !isSteered ? await start(what, options) : await steerSweep(what, options);
  });

requirePairs(sweepCommand, {
  apart: pairsOf(['--status', '--pause', '--resume', '--cancel', '--dry-run']),
});

function pairsOf(options: readonly string[]): [string, string][] {
  return options.flatMap((one, i) => options.slice(i + 1).map((other): [string, string] => [one, other]));
}

function needsFile(what: string): RatchetError {
  return new RatchetError(
    'ConfigInvalid',
    `--dry-run: expected the file of a sweep, FILE.toml, got ${JSON.stringify(what)}.`,
  );
}

interface Options extends SweepSteering {
  readonly dryRun?: boolean;
  readonly yes?: boolean;
  readonly page?: boolean;
}

/** One line of `ratchet sweep FILE --json` between its first and its last. */
type SweepLine =
  | ({ readonly type: 'progress'; readonly time: string } & SweepStatus)
  | ({ readonly type: 'result'; readonly time: string } & SweepResult);

async function start(file: string, { dryRun, yes = false, page, json = false }: Options): Promise<number> {
  const reporter = openReporter<SweepLine>({ json });
  const { input, spec } = await planSweep(file, { projectFolder: process.cwd(), yes, say: reporter.say });
  if (dryRun) {
    if (json) printJson(planJson(input), 2);
    else print(planLines(input).join('\n'));
    return 0;
  }
  const quiet = { say: reporter.say, part: () => '' };
  const exitCode = await withProcesses(needsOf(spec), quiet, async ({ client, stack, uiUrl, interrupted, gone }) => {
    await refuseOtherSweep(client, input, file);
    const shown = page === false ? null : await openPage(input, reporter.say);
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
    const tell = (status: SweepStatus): void =>
      reporter.emit({ type: 'progress', time: new Date().toISOString(), ...status });
    const options = { reporter, hasOwnStack: stack !== null, interrupted: interrupted.signal, gone };
    try {
      return await watchWorkflow(handle, options, {
        noun: 'sweep',
        toEnd: `npx ratchet-rl sweep ${input.name} --cancel`,
        follow: (signal) => followSweep(handle, { say: reporter.say, tell }, signal),
        tellResult: async (result) => {
          reporter.emit({ type: 'result', time: new Date().toISOString(), ...result });
          reporter.print(sweepLines(result).join('\n'));
          if (result.best !== null)
            reporter.print(`best: row ${result.best + 1}: ${describeRow(result.rows[result.best])}`);
          return 0;
        },
      });
    } finally {
      await shown?.close();
    }
  });
  return exitCode ?? 130;
}

/** Loads the page's code only when it is wanted. */
async function openPage({ store, runs }: SweepInput, say: (line: string) => void) {
  const { openRunPage } = await import('../../page/run-page.ts');
  return openRunPage({ store, run: null, compare: runs.map(({ name }) => name) }, process.cwd(), say);
}
