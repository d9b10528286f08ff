// Starts the interface: picks the platform, connects the stores and mounts the window.
import { mount } from 'svelte';
import { App } from './app.svelte';
import { openPlatform } from './platform';
import Root from './Root.svelte';
import { language } from './text';
import './styles/tokens.css';
import './styles/base.css';
import './styles/code.css';

const target = document.getElementById('app');
if (!target) throw new Error('index.html has no #app');

language.restore(localStorage);
const app = new App(await openPlatform(), { storage: localStorage });
app.start();
mount(Root, { target, props: { app } });
