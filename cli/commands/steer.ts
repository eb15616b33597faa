import { WorkflowUpdateFailedError } from '@temporalio/client';
import { Command } from 'commander';
import { RatchetError } from '../../core/errors.ts';
import { connect, findRun, findTemporal } from '../connection.ts';

export const pauseCommand = new Command('pause')
  .description('let what is under way finish, then start no further step')
  .argument('<run>')
  .argument('[reason]')
  .action((run: string, reason = 'asked to') => tell(run, 'pause', [reason]));

export const resumeCommand = new Command('resume')
  .description('go on after a pause')
  .argument('<run>')
  .action((run: string) => tell(run, 'resume', ['']));

export const setCommand = new Command('set')
  .description('change a running run: learning_rate=1e-4, stop_after=50')
  .argument('<run>')
  .argument('<setting>', 'name=value')
  .action((run: string, setting: string) => {
    const [name = '', value = ''] = setting.split('=');
    const update = { learning_rate: 'set-learning-rate', stop_after: 'stop-after' }[name];
    if (!update) {
      throw new RatchetError(
        'ConfigInvalid',
        `expected learning_rate=… or stop_after=…, got ${JSON.stringify(setting)}`,
      );
    }
    return tell(run, update, [Number(value)]);
  });

async function tell(run: string, update: string, args: [string | number]): Promise<void> {
  const { client, close } = await connect(await findTemporal(process.cwd()));
  try {
    const answer = await (await findRun(client, run)).executeUpdate<string, [string | number]>(update, { args });
    process.stdout.write(`${answer}\n`);
  } catch (error) {
    if (!(error instanceof WorkflowUpdateFailedError)) throw error;
    throw new RatchetError('ConfigInvalid', error.cause?.message ?? error.message, { cause: error });
  } finally {
    await close();
  }
}
