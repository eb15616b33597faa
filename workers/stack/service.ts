import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { homedir, userInfo } from 'node:os';
import path from 'node:path';
import {
  environmentForAll,
  selectEnvironment,
  temporalSecrets,
  withoutVariables,
} from '../../core/child-environment.ts';
import { RatchetError } from '../../core/errors.ts';

/** Managers that start a user's programs on this machine. */
type ServiceManager = 'systemd' | 'launchd';

export interface ServicePlan {
  readonly manager: ServiceManager;
  /** `ratchet-PROJECT-HASH`, one per project folder. */
  readonly name: string;
  /** The file the manager reads. */
  readonly file: string;
  readonly text: string;
  /** Commands that begin, check and end the service. The user types them; Ratchet runs none of them. */
  readonly toEnable: readonly string[];
  readonly toDisable: readonly string[];
  readonly notes: readonly string[];
}

export interface ServiceOptions {
  readonly projectFolder: string;
  /** The command of the service: a program and its arguments. */
  readonly command: readonly string[];
  readonly platform?: NodeJS.Platform;
  readonly env?: Readonly<NodeJS.ProcessEnv>;
  readonly home?: string;
  readonly user?: string;
  /** Whether systemd runs this machine. */
  readonly hasSystemd?: boolean;
  /** Grace that the command gives its workers. */
  readonly graceSeconds?: number | undefined;
}

/**
 * Seconds that the stack may take to end besides its workers' grace, workers before the server, until it is killed; it
 * needs less than 5 s.
 */
const stopSeconds = 20;
/** Delay after a stack that ended by itself, or found another one in the folder. */
const restartSeconds = 10;

/** Settings of the shell that a service gets besides what every child process sees. Never secrets. */
const settingsKept = ['RATCHET_*', 'TEMPORAL_*'];
/** A desktop session's own, wrong after the next login. */
const settingsLeft = [
  'RATCHET_STARTED_AT',
  'TERM',
  'NO_COLOR',
  'FORCE_COLOR',
  'SHELL',
  'XDG_RUNTIME_DIR',
  'XDG_SESSION_*',
];
/** Variables that only contain paths of secrets. */
const pathNames = /^(?:TEMPORAL_TLS_.*_PATH|TEMPORAL_TLS_SERVER_NAME|TEMPORAL_API_KEY_FILE|RATCHET_PAYLOAD_KEY_FILE)$/;

/**
 * Plans a service that keeps a project's stack running, so that runs continue after a reboot. `installService` writes
 * it.
 */
export function planService(options: ServiceOptions): ServicePlan {
  const { command, env = process.env, home = homedir(), user = userInfo().username } = options;
  const manager = managerOf(options);
  const projectFolder = realpathSync(options.projectFolder);
  const environment = environmentOf(env);
  for (const text of [projectFolder, ...command]) refuseUnwritable(text);
  const stem = path
    .basename(projectFolder)
    .toLowerCase()
    .replaceAll(/[^a-z0-9]+/g, '-')
    .replaceAll(/^-+|-+$/g, '')
    .slice(0, 40);
  const hash = createHash('sha256').update(projectFolder).digest('hex').slice(0, 8);
  const name = ['ratchet', ...(stem === '' ? [] : [stem]), hash].join('-');
  const stopTimeoutSeconds = stopSeconds + Math.ceil(options.graceSeconds ?? 0);
  const definition = { name, projectFolder, command, environment, stopTimeoutSeconds };
  const notes = secretsLeftOut(env);
  if (manager === 'systemd') {
    const config =
      env['XDG_CONFIG_HOME'] && path.isAbsolute(env['XDG_CONFIG_HOME'])
        ? env['XDG_CONFIG_HOME']
        : path.join(home, '.config');
    const unit = `${name}.service`;
    return {
      manager,
      name,
      file: path.join(config, 'systemd', 'user', unit),
      text: systemdUnit(definition),
      toEnable: [
        'systemctl --user daemon-reload',
        `systemctl --user enable --now ${unit}`,
        `loginctl enable-linger ${user}      # starts it at boot; without it, at your next login`,
        `journalctl --user -u ${unit} -f     # what it says`,
      ],
      toDisable: [`systemctl --user stop ${unit}`, 'systemctl --user daemon-reload'],
      notes,
    };
  }
  return {
    manager,
    name,
    file: path.join(home, 'Library', 'LaunchAgents', `${name}.plist`),
    text: launchdPlist(definition),
    toEnable: [
      `launchctl bootstrap gui/$(id -u) ~/Library/LaunchAgents/${name}.plist`,
      `tail -f .ratchet/logs/service.log     # what it says`,
    ],
    toDisable: [`launchctl bootout gui/$(id -u)/${name}`],
    notes: [...notes, 'macOS starts it when you log in, also after a reboot.'],
  };
}

/** Writes the service's file, readable only by its owner. Enables nothing. */
export function installService({ file, text }: ServicePlan): 'written' | 'as it was' {
  if (existsSync(file) && readFileSync(file, 'utf8') === text) return 'as it was';
  mkdirSync(path.dirname(file), { recursive: true });
  writeFileSync(file, text, { mode: 0o600 });
  return 'written';
}

/** Removes the service's file, and the link with which systemd enabled it. False when there was none. */
export function uninstallService({ file, manager }: ServicePlan): boolean {
  if (!existsSync(file)) return false;
  rmSync(file);
  if (manager === 'systemd') {
    rmSync(path.join(path.dirname(file), 'default.target.wants', path.basename(file)), { force: true });
  }
  return true;
}

function managerOf({
  platform = process.platform,
  hasSystemd = existsSync('/run/systemd/system'),
  command,
}: ServiceOptions): ServiceManager {
  if (platform === 'darwin') return 'launchd';
  if (platform === 'linux' && hasSystemd) return 'systemd';
  throw new RatchetError(
    'Unsupported',
    `A service is written for systemd (Linux) or launchd (macOS); this is ${platform === 'linux' ? 'Linux without systemd' : platform}. ` +
      `Let whatever starts programs here run this in the project's folder, as you, and end it with SIGTERM to that one process:\n  ${command.map(shellWord).join(' ')}`,
  );
}

interface Definition {
  readonly name: string;
  readonly projectFolder: string;
  readonly command: readonly string[];
  readonly environment: Readonly<Record<string, string>>;
  readonly stopTimeoutSeconds: number;
}

/** A user unit. KillMode=mixed: SIGTERM goes only to the supervisor, which ends the workers before the server. */
function systemdUnit({ projectFolder, command, environment, stopTimeoutSeconds }: Definition): string {
  const [program = '', ...args] = command;
  return [
    '[Unit]',
    `Description=Ratchet in ${projectFolder.replaceAll('%', '%%')}`,
    // A folder on a disk that is not mounted yet is awaited by restarting.
    'StartLimitIntervalSec=0',
    '',
    '[Service]',
    'Type=exec',
    `WorkingDirectory=${projectFolder.replaceAll('%', '%%')}`,
    ...Object.entries(environment).map(([name, value]) => `Environment=${systemdWord(`${name}=${value}`)}`),
    // Only in arguments does a dollar sign begin a variable.
    `ExecStart=${[systemdWord(program), ...args.map((arg) => systemdWord(arg).replaceAll('$', () => '$$'))].join(' ')}`,
    'Restart=on-failure',
    `RestartSec=${restartSeconds}`,
    'KillMode=mixed',
    `TimeoutStopSec=${stopTimeoutSeconds}`,
    'UMask=0077',
    '',
    '[Install]',
    'WantedBy=default.target',
    '',
  ].join('\n');
}

/** One word of a systemd setting: quoted, with `%` doubled, which would begin a specifier. */
function systemdWord(text: string): string {
  return `"${text.replaceAll('\\', '\\\\').replaceAll('"', '\\"').replaceAll('%', '%%')}"`;
}

function launchdPlist({ name, projectFolder, command, environment, stopTimeoutSeconds }: Definition): string {
  const log = path.join(projectFolder, '.ratchet', 'logs', 'service.log');
  const text = (value: string) => `<string>${xml(value)}</string>`;
  const pairs = Object.entries(environment).flatMap(([key, value]) => [`<key>${xml(key)}</key>`, text(value)]);
  return [
    '<?xml version="1.0" encoding="UTF-8"?>',
    '<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">',
    '<plist version="1.0">',
    '<dict>',
    `<key>Label</key>${text(name)}`,
    `<key>ProgramArguments</key><array>${command.map(text).join('')}</array>`,
    `<key>WorkingDirectory</key>${text(projectFolder)}`,
    `<key>EnvironmentVariables</key><dict>${pairs.join('')}</dict>`,
    '<key>RunAtLoad</key><true/>',
    '<key>KeepAlive</key><dict><key>SuccessfulExit</key><false/></dict>',
    `<key>ThrottleInterval</key><integer>${restartSeconds}</integer>`,
    `<key>ExitTimeOut</key><integer>${stopTimeoutSeconds}</integer>`,
    '<key>Umask</key><integer>63</integer>',
    `<key>StandardOutPath</key>${text(log)}`,
    `<key>StandardErrorPath</key>${text(log)}`,
    '</dict>',
    '</plist>',
    '',
  ].join('\n');
}

function xml(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll('"', '&quot;');
}

/** Variables that a stack started from this shell would see, without its secrets. */
function environmentOf(env: Readonly<NodeJS.ProcessEnv>): Record<string, string> {
  const seen = selectEnvironment([...environmentForAll, ...settingsKept], env);
  const open = { ...withoutVariables([...temporalSecrets, ...settingsLeft], seen), ...namesOfFiles(seen) };
  // A proxy's password, or a key in a setting that is not ours.
  return Object.fromEntries(
    Object.entries(open).filter(([, value]) => value !== '' && !hasControlCharacters(value) && !hasPassword(value)),
  );
}

function namesOfFiles(env: Readonly<Record<string, string>>): Record<string, string> {
  return Object.fromEntries(Object.entries(env).filter(([name]) => pathNames.test(name)));
}

function hasPassword(value: string): boolean {
  return /\w+:\/\/[^/\s@]*@/.test(value);
}

/** A line for each secret of this shell that the service would need and does not get. */
function secretsLeftOut(env: Readonly<NodeJS.ProcessEnv>): string[] {
  const files: Readonly<Record<string, string>> = {
    TEMPORAL_API_KEY: 'TEMPORAL_API_KEY_FILE',
    RATCHET_PAYLOAD_KEY: 'RATCHET_PAYLOAD_KEY_FILE',
    TEMPORAL_TLS_CLIENT_KEY_DATA: 'TEMPORAL_TLS_CLIENT_KEY_PATH',
    TEMPORAL_TLS_CLIENT_CERT_DATA: 'TEMPORAL_TLS_CLIENT_CERT_PATH',
    TEMPORAL_TLS_SERVER_CA_CERT_DATA: 'TEMPORAL_TLS_SERVER_CA_CERT_PATH',
  };
  return Object.entries(files)
    .filter(([name]) => env[name])
    .map(
      ([name, file]) =>
        `${name} is set here and was left out, since this file is no place for it: put it into a file of its own (chmod 600), set ${file} instead, and install again.`,
    );
}

function refuseUnwritable(text: string): void {
  if (!hasControlCharacters(text) && !/[\\\s]$/.test(text)) return;
  throw new RatchetError(
    'Unsupported',
    `${JSON.stringify(text)} cannot be in a service's file: it holds a control character, or ends in white space or a backslash. Rename it and install again.`,
  );
}

function hasControlCharacters(text: string): boolean {
  return /\p{Cc}/u.test(text);
}

export function shellWord(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}
