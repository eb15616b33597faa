import { z } from 'zod';
import { isSecretUrl } from '../toml/secrets.ts';
import { atLeastZero, choice, flag, fraction } from '../toml/values.ts';
import { setting, specFields } from './setting.ts';

const webhookUrl = () =>
  z
    .url({ protocol: /^https?$/ })
    .refine((url) => !isSecretUrl(url))
    .meta({
      expected:
        'a URL such as "https://alerts.example.com/ratchet" that is not a secret; webhook addresses of Slack, Discord and Telegram are secrets, and so are others with a long random part: put such an address into an environment variable, and name that as webhook_var',
    });

/** Other variables do not reach the process that posts. */
const notifyVariable = () =>
  z
    .string()
    .regex(/^NOTIFY_\w{1,60}$/)
    .meta({ expected: 'the name of an environment variable that begins with NOTIFY_, such as "NOTIFY_URL"' });

/** Notices of a run, and their receivers. Keys stay in the environment of the metrics process, never here. */
export const notify = {
  webhook: setting(webhookUrl(), 'where notices are posted, within seconds and until they are taken'),
  webhook_var: setting(notifyVariable(), 'the name of an environment variable with that URL, where it is a secret'),
  format: setting(
    choice('slack', 'json'),
    'what is posted: a message of Slack’s (`{"text"}`), or the notice; "slack" where the URL is Slack’s, else "json"',
  ),
  secret_var: setting(
    notifyVariable(),
    'the name of an environment variable with a secret: posts are signed with HMAC-SHA256 as in Standard Webhooks (`webhook-id`, `webhook-timestamp`, `webhook-signature`)',
  ),
  private: setting(
    flag(),
    'whether the name in the URL may lead to an address of this machine or of a private network; an IP address, or `localhost`, may always be written',
    { default: false },
  ),
  entropy_share: setting(
    fraction(),
    'notice when the entropy of 5 steps is below this share of that of the first 10; 0 = never',
    { default: 0.1 },
  ),
  length_factor: setting(
    z.number().gt(1).meta({ expected: 'a number > 1' }),
    'notice when answers of 5 steps are so many times as long as those of the 20 steps before',
    { default: 2 },
  ),
  mismatch_kl: setting(
    z.number().gt(0).meta({ expected: 'a number > 0' }),
    'notice when rollouts of 5 steps come from a policy further than this from the one that trains, in nats per token',
    { default: 0.1 },
  ),
  eval_fall: setting(
    atLeastZero(),
    'notice when a held-out mean reward is this far below its best while rewards in training rose',
    { default: 0.05 },
  ),
};
export const NotifySpec = z.strictObject(specFields(notify));
export type NotifySpec = z.infer<typeof NotifySpec>;
