import { Command } from '@commander-js/extra-typings';
import type { Client, WorkflowHandle } from '@temporalio/client';
import { RatchetError } from '../../core/errors.ts';
import { readCount } from '../typed/read-count.ts';
import { starterOf } from '../../workers/temporal/history-of-changes.ts';
import { listWorkflows } from '../../workers/temporal/list-workflows.ts';
import { requireRole } from '../../workers/temporal/who-may.ts';
import { refusedUpdate } from '../temporal/refused-update.ts';
import { withTemporal } from '../temporal/with-temporal.ts';
import { tell } from '../commands/run/steer.ts';
import { print } from '../output/print.ts';

const searchArgument = 'its id, its workflow (gepa.ENV.ID, RUN.gepa.ENV.vSTEP), or the run whose branch it is';

export const stopCommand = new Command('stop')
  .description('end a search: what is under way is finished, and the best prompt is validated')
  .argument('<search>', searchArgument)
  .action(async (search) =>
    say(await withTemporal((client) => update(client, search, (handle) => handle.executeUpdate<string, []>('stop')))),
  );

export const raiseCommand = new Command('raise')
  .description('give a running search more calls')
  .argument('<search>', searchArgument)
  .argument('<calls>', 'calls in all')
  .action(async (search, calls) => {
    const maxCalls = readCount('calls', calls);
    const raise = (handle: WorkflowHandle) =>
      handle.executeUpdate<string, [number]>('raise-budget', { args: [maxCalls] });
    say(await withTemporal((client) => update(client, search, raise)));
  });

const onEnvironment = ['--env <name>', 'the environment, where the run has several'] as const;

export const branchCommand = new Command('branch')
  .description('let a running run look for a better system prompt beside its training, as its [gepa] says')
  .argument('<run>')
  .option(...onEnvironment)
  .action((run, { env = null }) => tell(run, 'gepa-branch', [env]));

export const adoptCommand = new Command('adopt')
  .description('take the prompt that a branch of a running run found, for groups that are leased from its next step on')
  .argument('<run>')
  .option(...onEnvironment)
  .action((run, { env = null }) => tell(run, 'adopt-prompt', [env]));

async function update(
  client: Client,
  search: string,
  ask: (handle: WorkflowHandle) => Promise<string>,
): Promise<string> {
  const handle = client.workflow.getHandle(await findSearch(client, search));
  await requireRole(`steering the search ${search}`, { of: 'run', run: search, owner: () => starterOf(handle) });
  try {
    return await ask(handle);
  } catch (error) {
    throw refusedUpdate(search, error);
  }
}

async function findSearch(client: Client, search: string): Promise<string> {
  const query = "WorkflowType='optimizePrompt' AND ExecutionStatus='Running'";
  const running: string[] = [];
  for await (const { workflowId } of listWorkflows(client, query)) running.push(workflowId);
  const found = running.filter((id) => id === search || id.split('.').at(-1) === search);
  const branches = running.filter((id) => id.startsWith(`${search}.gepa.`));
  const [one, ...others] = [...new Set([...found, ...branches])];
  if (one !== undefined && others.length === 0) return one;
  if (one !== undefined)
    throw new RatchetError('Unsupported', `${search} may mean several: ${[one, ...others].join(', ')}. Name one.`);
  const there = running.length === 0 ? 'No search is running.' : `Running are: ${running.join(', ')}.`;
  throw new RatchetError('RunNotFound', `There is no running search ${search}. ${there}`);
}

function say(line: string): void {
  print(line);
}
