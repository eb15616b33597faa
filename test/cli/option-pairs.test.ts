/** What is typed is never ignored: options that exclude one another, and those that mean nothing alone. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { statusCommand } from '../../cli/commands/run/status.ts';
import { trainCommand } from '../../cli/commands/run/train.ts';
import { evalRunCommand } from '../../cli/eval/run-options.ts';
import { RatchetError } from '../../core/errors.ts';

const evalRun = (): ReturnType<typeof evalRunCommand> => evalRunCommand().action(() => undefined);

for (const [command, typed, says] of [
  [() => statusCommand, 'words --rollout 3/0 --rollouts', '--rollouts and --rollout: expected one of them'],
  [() => statusCommand, 'words --env a', '--env: expected --rollouts beside it'],
  [() => statusCommand, 'words --rollout 3/0 --limit 5', '--limit: expected --rollouts beside it'],
  [() => trainCommand, 'words.toml --import', '--import: expected --dry-run beside it'],
  [() => trainCommand, 'words.toml --model-config c.json', '--model-config: expected --dry-run beside it'],
  [evalRun, 'reverse-text --resume --fresh', '--resume and --fresh: expected one of them'],
  [evalRun, 'reverse-text --serve -b http://a/v1', '--serve and --api-base-url: expected one of them'],
  [evalRun, 'reverse-text -m x --step 3', '--step: expected --run beside it'],
] as const) {
  test(`${typed}: refused by both names`, async () => {
    const parsed = command().exitOverride().parseAsync(typed.split(' '), { from: 'user' });
    await assert.rejects(parsed, (error: unknown) => {
      assert.ok(error instanceof RatchetError && error.code === 'ConfigInvalid', String(error));
      assert.ok(error.message.startsWith(says), error.message);
      return true;
    });
  });
}

test('a default is nothing that was typed', async () => {
  await evalRun().parseAsync(['reverse-text', '--run', 'words', '--step', '3', '--fresh'], { from: 'user' });
});
