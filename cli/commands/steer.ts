import { WorkflowNotFoundError, WorkflowUpdateFailedError } from '@temporalio/client';
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
    const { update, value } = readSetting(setting);
    return tell(run, update, [value]);
  });

const settings = {
  learning_rate: {
    update: 'set-learning-rate',
    expected: 'a number above 0 and below 1, as in learning_rate=1e-4',
    isValid: (value: number) => value > 0 && value < 1,
  },
  stop_after: {
    update: 'stop-after',
    expected: 'a whole step number, as in stop_after=50',
    isValid: (value: number) => Number.isSafeInteger(value) && value >= 0,
  },
} as const;

function readSetting(setting: string): { update: string; value: number } {
  const [, key = '', text = ''] = /^([^=]*)=?(.*)$/s.exec(setting)!;
  const name = key.replaceAll('-', '_');
  if (name !== 'learning_rate' && name !== 'stop_after') {
    throw new RatchetError('ConfigInvalid', `expected learning_rate=… or stop_after=…, got ${JSON.stringify(setting)}`);
  }
  const { update, expected, isValid } = settings[name];
  const value = text.trim() === '' ? Number.NaN : Number(text);
  if (!isValid(value)) {
    throw new RatchetError('ConfigInvalid', `${name}: expected ${expected}; got ${JSON.stringify(text)}`);
  }
  return { update, value };
}

async function tell(run: string, update: string, args: [string | number]): Promise<void> {
  const { client, close } = await connect(await findTemporal(process.cwd()));
  try {
    const answer = await (await findRun(client, run)).executeUpdate<string, [string | number]>(update, { args });
    process.stdout.write(`${answer}\n`);
  } catch (error) {
    if (error instanceof WorkflowNotFoundError) {
      throw new RatchetError(
        'RunNotFound',
        `The run ${run} is not running; \`ratchet status ${run}\` says where it stands.`,
        {
          cause: error,
        },
      );
    }
    if (!(error instanceof WorkflowUpdateFailedError)) throw error;
    throw new RatchetError('ConfigInvalid', error.cause?.message ?? error.message, { cause: error });
  } finally {
    await close();
  }
}
