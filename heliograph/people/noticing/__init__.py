"""How people are notified of what needs attention: `choices` holds everyone's settings, `telling` queues mails and
events.

The rules nobody may break: nobody is notified of what their role may not see, and everything is queued once.
"""
